from __future__ import annotations

from stepscope.schema import ARROWS
