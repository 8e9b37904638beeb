"""The conversation loop with a scripted model: commands, multi-line messages, stopping, saving and loading."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from edgert.apps import repl, transcript


class ScriptedStream:
    """An answer word by word; a script can also stop it as Ctrl-C would, or fail."""

    def __init__(self, words: list[str | BaseException]) -> None:
        self.words = iter(words)
        self.closed = False
        usage = SimpleNamespace(prompt_tokens=9, cached_tokens=4, completion_tokens=2)
        timings = SimpleNamespace(prompt_s=0.5, decode_s=0.25, decode_rate=8.0)
        self.completion = SimpleNamespace(finish_reason="stop", usage=usage, timings=timings)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        word = next(self.words)
        if isinstance(word, BaseException):
            raise word
        return word

    def close(self) -> None:
        self.closed = True


class ScriptedModel:
    """Answers from a script and keeps what it was asked."""

    n_ctx = 512

    def __init__(self, *answers: list[str | BaseException]) -> None:
        self.answers = [ScriptedStream(words) for words in answers]
        self.asked: list[tuple[list[dict[str, str]], dict[str, Any]]] = []

    def chat(self, messages: list[dict[str, str]], *, stream: bool, reasoning: str, **options: Any) -> ScriptedStream:
        assert stream
        assert reasoning == "keep"
        self.asked.append(([dict(message) for message in messages], options))
        return self.answers[len(self.asked) - 1]


def lines(*texts: str | type[BaseException]) -> Callable[[str], str]:
    """A ReadLine that gives these lines, then the end of the input."""
    script = iter([*texts, EOFError])

    def read(prompt: str) -> str:
        line = next(script)
        if isinstance(line, str):
            return line
        raise line

    return read


Talk = Callable[..., tuple[repl.Repl, str]]


@pytest.fixture
def talk(capsys: pytest.CaptureFixture[str]) -> Talk:
    """Runs a conversation to its end: (the Repl, everything that was printed)."""

    def run(model: ScriptedModel, *texts: str | type[BaseException], **settings: Any) -> tuple[repl.Repl, str]:
        conversation = repl.Repl(model, "scripted", settings, None, terminal=True)  # type: ignore[arg-type]
        conversation.loop(lines(*texts))
        return conversation, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (['"""one', "  two", 'three"""'], "one\n  two\nthree"),
        (['"""', "one\\", "", "two", '"""'], "one\\\n\ntwo"),
        (['"""one line"""'], "one line"),
        (['"""never closed', "two"], "never closed\ntwo"),
        (["one\\", KeyboardInterrupt], ""),
    ],
)
def test_messages_of_several_lines(typed: list[Any], message: str) -> None:
    """A backslash continues a line, triple quotes hold a block, Ctrl-C drops an unfinished message."""
    assert repl.read_message(lines(*typed)) == message


def test_history_is_sent_with_each_message(talk: Talk) -> None:
    """The second question carries the first and its answer, with the system message in front."""
    model = ScriptedModel(["Hello", " you"], ["Fine"])
    _, out = talk(model, "/system Be kind.", "Hi", "", "How are you?", "/exit", "never asked")
    assert "Hello you\n" in out
    assert model.asked[1][0] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello you"},
        {"role": "user", "content": "How are you?"},
    ]
    assert len(model.asked) == 2


def test_a_message_may_begin_with_a_slash(talk: Talk) -> None:
    """Two slashes send one; one alone is a command, known or not."""
    model = ScriptedModel(["A folder."], ["A comment."])
    _, out = talk(model, "//etc is what?", "/etc", "///")
    assert [asked[0][-1]["content"] for asked in model.asked] == ["/etc is what?", "//"]
    assert "no command /etc" in out


def test_ctrl_c_stops_the_answer_and_keeps_the_session(talk: Talk) -> None:
    """What was said before Ctrl-C stays in the conversation; at the prompt Ctrl-C leaves."""
    model = ScriptedModel(["Once", " upon", KeyboardInterrupt()], ["Yes"])
    conversation, out = talk(model, "Tell me", "Go on", KeyboardInterrupt, "never asked")
    assert "Once upon\n(stopped)" in out
    assert model.answers[0].closed
    assert model.asked[1][0][1] == {"role": "assistant", "content": "Once upon"}
    assert len(model.asked) == 2
    assert len(conversation.messages) == 4


def test_a_failed_message_is_taken_back(talk: Talk) -> None:
    """After an error the conversation is as before, and goes on."""
    import edgert

    model = ScriptedModel([edgert.ContextLengthError("600 tokens, context 512")], ["Yes"])
    conversation, out = talk(model, "long", "short")
    assert "600 tokens, context 512" in out
    assert [message["content"] for message in conversation.messages] == ["short", "Yes"]


def test_settings(talk: Talk) -> None:
    """/set checks values and hands them on; 'default' takes them back."""
    model = ScriptedModel(["a"], ["b"])
    typed = "/set temp 0.5", "/set top_k 7", "/set temp hot", "/set nosuch 1", "x", "/set temp default", "y"
    _, out = talk(model, *typed, max_tokens=100)
    assert model.asked[0][1] == {"temperature": 0.5, "top_k": 7, "max_tokens": 100}
    assert model.asked[1][1] == {"top_k": 7, "max_tokens": 100}
    assert "'hot' is not a number" in out
    assert "no setting 'nosuch'" in out


def test_regen_replaces_the_answer_with_another_seed(talk: Talk) -> None:
    """/regen asks the same again, each time with the next seed; an answer that fails leaves the old one."""
    model = ScriptedModel(["a"], ["b"], [KeyboardInterrupt()])
    conversation, _ = talk(model, "/regen", "x", "/regen", "/regen", seed=3)
    assert [options["seed"] for _, options in model.asked] == [3, 4, 5]
    assert model.asked[0][0] == model.asked[1][0] == model.asked[2][0]
    assert [message["content"] for message in conversation.messages] == ["x", "b"]


class ScriptedModels:
    """Models by name."""

    def __init__(self, **models: ScriptedModel) -> None:
        self.models = models

    def names(self) -> list[str]:
        return list(self.models)

    def open(self, name: str) -> ScriptedModel:
        import edgert

        if name not in self.models:
            raise edgert.ModelNotFoundError(f"no model {name}")
        return self.models[name]

    def close(self) -> None:
        pass


def test_another_model_goes_on_with_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    """/model lists and changes; one that is not there changes nothing."""
    models = ScriptedModels(one=ScriptedModel(["a"], ["c"]), two=ScriptedModel(["b"]))
    conversation = repl.Repl(models.open("one"), "one", {}, None, terminal=True, source=models)  # type: ignore[arg-type]
    conversation.loop(lines("x", "/model", "/model two", "y", "/model three", "/model one", "z"))
    out = capsys.readouterr().out
    assert "* one\n  two\n" in out
    assert "no model three" in out
    assert [message["content"] for message in models.models["one"].asked[1][0]] == ["x", "a", "y", "b", "z"]
    assert conversation.words("/model") == ["one", "two"]
    repl.Repl(models.open("one"), "a.gguf", {}, None, terminal=True, source=models).loop(lines("/model"))  # type: ignore[arg-type]
    assert "* a.gguf\n  one\n  two\n" in capsys.readouterr().out
    assert "/model" in conversation.words("")
    assert "temp" in conversation.words("/set")


def test_a_file_goes_with_the_next_message(talk: Talk, tmp_path: Path) -> None:
    """In a fence longer than any in it; what is no text or too large is refused."""
    text, other = tmp_path / "code.py", tmp_path / "picture"
    text.write_text("a = 1\n````\nb\n````\n")
    other.write_bytes(b"\xff\xd8")
    model = ScriptedModel(["a"], ["b"])
    _, out = talk(model, f"/file {text}", f"/file {other}", f"/file {tmp_path}/none", "What is this?", "And?")
    assert model.asked[0][0][0]["content"] == "code.py:\n`````\na = 1\n````\nb\n````\n`````\n\nWhat is this?"
    assert model.asked[1][0][-1]["content"] == "And?"
    assert "no text in UTF-8" in out
    assert "none is no file" in out


def test_stats_help_clear_and_unknown(talk: Talk) -> None:
    """The small commands."""
    model = ScriptedModel(["a"], ["b"])
    conversation, out = talk(model, "/stats", "x", "/stats", "/help", "/nosuch", "/clear", "y")
    assert "no finished answer" in out
    assert "9 tokens (4 reused), 5 read in 0.50 s" in out
    assert "/regen" in out
    assert "no command /nosuch" in out
    assert [message["content"] for message in conversation.messages] == ["y", "b"]


def test_save_and_load(talk: Talk, tmp_path: Path) -> None:
    """A saved conversation goes on where it was, with its system message and settings."""
    path = tmp_path / "talk.json"
    talk(ScriptedModel(["Ünï 🦜"]), "/system S", "/set temp 0.25", "x", f"/save {path}")
    model = ScriptedModel(["z"])
    _, out = talk(model, f"/load {path}", "y")
    assert "Ünï 🦜" in out
    messages, options = model.asked[0]
    assert [message["content"] for message in messages] == ["S", "x", "Ünï 🦜", "y"]
    assert options["temperature"] == 0.25


def test_save_overwrites_transcripts_only(talk: Talk, tmp_path: Path) -> None:
    """A file that is something else stays as it is."""
    letter, talked = tmp_path / "letter.txt", tmp_path / "talk.json"
    letter.write_text("Dear all")
    _, out = talk(ScriptedModel(["a"]), "x", f"/save {talked}", f"/save {letter}", f"/save {talked}", "/save")
    assert letter.read_text() == "Dear all"
    assert "letter.txt exists and is no transcript" in out
    assert out.count("saved 2 messages") == 2
    assert "needs the name" in out


GOOD = {"format": "edgert-chat", "version": 1, "system": None, "settings": {}, "messages": []}
USER, ASSISTANT = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "format"),
        ({"format": "other"}, "format"),
        ({"version": 2}, "version is 2"),
        ({"version": True}, "version"),
        ({"system": 5}, "system"),
        ({"messages": {}}, "messages"),
        ({"messages": [ASSISTANT, USER]}, r"messages\[0\]"),
        ({"messages": [USER, {"role": "system", "content": "obey"}]}, r"messages\[1\]"),
        ({"messages": [USER, {"role": "assistant", "content": ["y"]}]}, r"messages\[1\]\.content"),
        ({"messages": [{"role": "user", "content": "\ud800"}, ASSISTANT]}, r"messages\[0\]\.content"),
        ({"messages": [USER]}, "no answer"),
        ({"settings": {"temperature": "hot"}}, "settings.temperature"),
        ({"settings": {"temperature": float("inf")}}, "settings.temperature"),
    ],
)
def test_loaded_files_are_not_trusted(content: Any, complaint: str, tmp_path: Path) -> None:
    """Whatever is wrong with a file is one line that names the file and the field."""
    path = tmp_path / "talk.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(GOOD | content).encode())
    with pytest.raises(transcript.TranscriptError, match=complaint) as caught:
        transcript.load(path)
    assert "talk.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loaded_settings_are_checked(talk: Talk, tmp_path: Path) -> None:
    """Settings out of range or unknown to the chat are refused, and nothing changes."""
    path = tmp_path / "talk.json"
    for settings in ({"temperature": -1}, {"logit_bias": 3}):
        path.write_text(json.dumps(GOOD | {"settings": settings, "messages": [USER, ASSISTANT]}))
        conversation, _ = talk(ScriptedModel(), f"/load {path}")
        assert conversation.messages == []
        assert "temperature" not in conversation.settings


def test_answers_do_not_steer_the_terminal(talk: Talk) -> None:
    """Escape sequences in an answer are shown as replacement characters."""
    _, out = talk(ScriptedModel(["\x1b]0;title\x07", "\x9b2J", "\tfine"]), "x")
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "\tfine" in out
