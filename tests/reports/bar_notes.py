"""The texts of a bar's notes, which most tests of reports are about."""

from __future__ import annotations


def texts(bar):
    return tuple(note.text for note in bar.notes)
