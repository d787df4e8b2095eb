from __future__ import annotations

import json

from stepscope.readers import readers


def test_every_reader_is_listed_with_what_it_provides(run):
    listed = json.loads(run("formats", "--format", "json").out)
    assert [row["name"] for row in listed] == [reader.name for reader in readers()]
    assert "spans" in listed[0]["provides"]
