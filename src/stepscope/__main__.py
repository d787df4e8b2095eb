"""`python -m stepscope`, the same as the command."""

from __future__ import annotations

from stepscope.cli import run

if __name__ == "__main__":
    run()
