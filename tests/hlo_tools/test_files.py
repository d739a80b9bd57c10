"""Files are read under limits: kind, size, and size after decompression."""

import gzip
import os
from pathlib import Path
import socket

import pytest

from hlo_tools.errors import FileError, HloError
from hlo_tools.files import MOST_PROGRAM_BYTES, read_file, unzipped
from hlo_tools.read import read_module


def test_a_file_of_the_largest_size_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(FileError, match="is too large: it has 5; allowed: 4 bytes"):
        read_file(tmp_path / "file", 4)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    """A named pipe without a writer would wait for ever, a device would never end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="is a named pipe; allowed: a regular file"):
        read_file(tmp_path / "pipe", 10)
    with pytest.raises(FileError, match="is a device"):
        read_file("/dev/zero", 10)
    with pytest.raises(FileError, match="is a folder"):
        read_file(tmp_path, 10)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(FileError):
            read_file(tmp_path / "socket", 10)


def test_a_file_that_lies_about_its_size_is_cut():
    with pytest.raises(FileError, match="it has more; allowed: 10 bytes"):
        read_file("/proc/self/status", 10)


@pytest.mark.parametrize("name", ["absent", "a\0b", "x" * 5000])
def test_what_cannot_be_opened_is_one_error(tmp_path, name):
    with pytest.raises(FileError):
        read_file(f"{tmp_path}/{name}", 10)


def test_gzip_is_read_up_to_the_limits():
    assert unzipped(gzip.compress(b"abc") + gzip.compress(b"def"), 6) == b"abcdef"
    with pytest.raises(FileError, match="it decompresses to more; allowed: 5 bytes"):
        unzipped(gzip.compress(b"abcdef"), 5)
    with pytest.raises(FileError, match="damaged gzip"):
        unzipped(gzip.compress(b"abcdef")[:-9], 100)


def test_a_gzip_bomb_is_not_decompressed(tmp_path):
    bomb = gzip.compress(bytes(2**26), compresslevel=9)
    with pytest.raises(FileError, match="over 400 times as many; allowed: a ratio of 400"):
        unzipped(bomb, MOST_PROGRAM_BYTES)
    path = tmp_path / "m.before_optimizations.hlo.pb.gz"
    path.write_bytes(bomb)
    for read in (path, tmp_path):
        with pytest.raises(HloError, match="pb.gz: .* allowed: a ratio"):
            read_module(read)


def test_programs_are_regular_files_too(tmp_path):
    os.mkfifo(tmp_path / "m.before_optimizations.txt")
    for path in (tmp_path, tmp_path / "m.before_optimizations.txt", Path("/dev/zero")):
        with pytest.raises(HloError, match="cannot read .* is a (named pipe|device)"):
            read_module(path)
