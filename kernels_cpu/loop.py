"""The compiled heart of the thread team: run a program of kernels with barriers, and wait for the next one.

Team block (int64 slots, a cache line apart so that waiting threads do not disturb each other): see team.py.
"""

from __future__ import annotations

from .simd import atomic_add, atomic_load, atomic_store, call, i64_at, inline, pause, set_i64

_call0, _call3 = call(1), call(3)


@inline
def relax(team, tries):
    """One step of waiting: spin for a while, then give the processor to whoever needs it."""
    if tries < i64_at(team + 320):
        pause()
    else:
        _call0(i64_at(team + 384), (0,))
    return tries + 1


@inline
def barrier(team, nth, program, first, last):
    """Wait for all threads; the last to come sets the cursors of ops first..last back to 0."""
    generation = atomic_load(team + 128)
    if atomic_add(team + 64, 1) == nth - 1:
        for i in range(first, last + 1):
            cursor = i64_at(program + 32 * i + 16)
            if cursor:
                set_i64(cursor, 0)
        atomic_store(team + 64, 0)
        atomic_add(team + 128, 1)
    else:
        tries = 0
        while atomic_load(team + 128) == generation:
            tries = relax(team, tries)


@inline
def run(team, tid, nth):
    """One slice of a program: ops are (kernel, arguments, cursor, barrier after)."""
    program, start, stop = i64_at(team + 192), i64_at(team + 200), i64_at(team + 208)
    first = start
    for i in range(start, stop):
        op = program + 32 * i
        _call3(i64_at(op), (i64_at(op + 8), tid, nth))
        if i64_at(op + 24) or i == stop - 1:
            barrier(team, nth, program, first, i)
            first = i + 1


def work(tid, nth, team, seen):
    """A worker: runs jobs with a number other than `seen` (address); returns when none comes for a while."""
    tries = 0
    while tries < i64_at(team + 256):
        job = atomic_load(team)
        if job == i64_at(seen):
            tries = relax(team, tries)
            continue
        set_i64(seen, job)
        if i64_at(team + 216):
            return
        run(team, tid, nth)
        tries = 0


def lead(tid, nth, team):
    """The caller's own share of the current job, which is noted as begun."""
    set_i64(team + 448, i64_at(team))
    run(team, 0, nth)
