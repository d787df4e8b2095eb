from __future__ import annotations

import pytest

from stepscope.core.errors import UnknownFormat
from stepscope.readers import expand, open_trace


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a.nsys-rep", "run: nsys export --type sqlite --output {folder}/a.sqlite {folder}/a.nsys-rep"),
        ("a.qdrep", "run: nsys export --type sqlite --output {folder}/a.sqlite {folder}/a.qdrep"),
        ("a.qdstrm", "run: QdstrmImporter --input-file {folder}/a.qdstrm, then nsys export"),
    ],
)
def test_what_only_its_own_tools_can_open_is_answered_with_the_command(tmp_path, name, command):
    path = tmp_path / name
    path.write_bytes(b"\x0a\x1b\x00\x01binary")
    with pytest.raises(UnknownFormat, match="only its own tools can open") as caught:
        open_trace(str(path))
    assert caught.value.hint.startswith(command.format(folder=tmp_path))


def test_in_a_folder_the_export_beside_it_is_taken(tmp_path):
    (tmp_path / "a.nsys-rep").write_bytes(b"\x00binary")
    assert expand([str(tmp_path)]) == [str(tmp_path / "a.nsys-rep")]
    (tmp_path / "a.sqlite").write_bytes(b"SQLite format 3\0 META_DATA_EXPORT")
    assert expand([str(tmp_path)]) == [str(tmp_path / "a.sqlite")]
