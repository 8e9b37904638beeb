"""A window that talks with a model: `python -m edgert.apps.desktop [MODEL]`. A pattern for desktop programs.

The model runs in a thread of its own (`Talk`, which knows no toolkit) and writes what happens to a queue. The window
empties the queue every few milliseconds, so it never waits for the model; closing it stops the answer.
"""

import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import edgert

if TYPE_CHECKING:
    import tkinter

POLL_MS = 15
Happening = tuple[str, str]  # ("ready" | "piece" | "end" | "error", text)


class Talk:
    """A conversation in a thread of its own. `happened` is a queue of what the window has to show."""

    def __init__(self, load: Callable[[], Any], **settings: Any) -> None:
        """load: called in the thread, returns the model, which is closed at the end. settings: of `Model.chat`."""
        self.happened: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._closing = False
        self._load, self._settings = load, settings
        self._messages: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def ask(self, text: str) -> None:
        """Put a question; the answer comes as "piece"s and an "end"."""
        self._questions.put(text)

    def stop(self) -> None:
        """End the answer that is coming; what has been said stays in the conversation."""
        self._stop.set()

    def close(self, seconds: float = 10.0) -> bool:
        """Stop, and end the thread; whether it ended in time."""
        self._closing = True
        self.stop()
        self._questions.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._load() as model:
                self.happened.put(("ready", ""))
                while (question := self._questions.get()) is not None and not self._closing:
                    self._answer(model, question)
        except (edgert.EdgertError, edgert.FormatError, OSError, MemoryError) as error:
            self.happened.put(("error", str(error)))

    def _answer(self, model: Any, question: str) -> None:
        self._stop.clear()
        asked = [*self._messages, {"role": "user", "content": question}]
        try:
            stream = model.chat(asked, stream=True, **self._settings)
            for piece in stream:
                self.happened.put(("piece", piece))
                if self._stop.is_set() or self._closing:
                    stream.close()
                    break
        except (edgert.EdgertError, edgert.FormatError) as error:  # such as a full context; the next question may fit
            self.happened.put(("error", str(error)))
            return
        self._messages = [*asked, stream.completion.message]
        self.happened.put(("end", stream.completion.finish_reason))


class Window:
    """The conversation above, a line to type in below; Enter asks, Escape stops the answer."""

    def __init__(self, root: "tkinter.Tk", talk: Talk) -> None:
        import tkinter
        from tkinter.scrolledtext import ScrolledText

        self.root, self.talk = root, talk
        self.text = ScrolledText(root, wrap="word", state="disabled", width=80, height=24)
        self.entry = tkinter.Entry(root)
        self.text.pack(fill="both", expand=True)
        self.entry.pack(fill="x")
        self.entry.focus()
        self.entry.bind("<Return>", lambda _: self.ask(self.entry.get()))
        root.bind("<Escape>", lambda _: talk.stop())
        root.protocol("WM_DELETE_WINDOW", self.close)
        self._show("Loading the model ...\n")
        self._poll()

    def ask(self, question: str) -> None:
        if question.strip():
            self.entry.delete(0, "end")
            self._show(f"\n> {question}\n")
            self.talk.ask(question)

    def close(self) -> None:
        """Take the window away at once, then wait for the thread."""
        self.root.destroy()
        self.talk.close()

    def _poll(self) -> None:
        """Show what has happened since the last time; all of it in one go, so that no backlog builds up."""
        pieces: list[str] = []
        while not self.talk.happened.empty():
            what, text = self.talk.happened.get()
            pieces.append({"piece": text, "ready": "Ready.\n", "end": "\n", "error": f"\n[{text}]\n"}[what])
        if pieces:
            self._show("".join(pieces))
        self.root.after(POLL_MS, self._poll)

    def _show(self, text: str) -> None:
        self.text.configure(state="normal")
        self.text.insert("end", text)
        self.text.configure(state="disabled")
        self.text.see("end")


def main() -> int:
    """Open the window; returns the exit code."""
    try:
        import tkinter
    except ImportError:
        print("desktop: this Python has no tkinter (on Debian: apt install python3-tk)", file=sys.stderr)
        return 1
    name = sys.argv[1] if len(sys.argv) > 1 else edgert.registry.default_model()
    root = tkinter.Tk()
    root.title(f"edgert: {name}")
    Window(root, Talk(lambda: edgert.load(name)))
    root.mainloop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
