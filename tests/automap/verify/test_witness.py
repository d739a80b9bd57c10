"""Witness records and their cache: JSON both ways, malformed files, corrupted caches."""

from dataclasses import replace
import json
import math

from hypothesis import given, settings, strategies as st
import pytest

from automap.errors import CacheWarning, PlanError
from automap.plan.file import layout, parse
from automap.verify.cache import cache_key, load_cached, save_cached
from automap.verify.compilers import CompilerMachine
from automap.verify.messages import MemoryBytes, PlanShardings
from automap.verify.witness import CompiledRecord, Witness
from tests.automap.broken_json import ACTIONS, changed, places


WITNESS = Witness(
    compiler="tpu",
    versions=(("jax", "0.10.2"), ("libtpu", "0.0.51")),
    topology="v5e:2x4",
    planned_sha256="0" * 64,
    fits=True,
    memory_limit_bytes=16 * 10**9,
    peak_bytes=1100,
    memory=MemoryBytes(
        arguments=1000, outputs=900, aliased=900, temporaries=100, generated_code=50
    ),
    refusal="",
    collectives=(
        CompiledRecord(
            kind="all-reduce",
            axes=("data",),
            bytes=64,
            count=2,
            site="12",
            op_name="jvp()/dot_general",
        ),
    ),
    compile_seconds=1.5,
    program="key.pb.gz",
)
JSON = WITNESS.to_json()


PLACES = list(places(JSON))
JUNK = st.sampled_from(
    [None, True, False, 0, -1, 1.5, math.nan, math.inf, 10**400, "", "tpu", "x", [], {}, [[]], [1]]
)


def test_the_peak_is_what_buffers_need():
    assert WITNESS.memory is not None
    assert WITNESS.memory.peak == 1000 + 900 - 900 + 100


def test_a_witness_survives_its_file():
    assert Witness.from_json(parse(layout(JSON))) == WITNESS


@settings(max_examples=400)
@given(st.sampled_from(PLACES), st.sampled_from(ACTIONS), JUNK)
def test_a_changed_file_is_read_as_it_says_or_refused(path, action, junk):
    data = changed(JSON, path, action, junk)
    try:
        witness = Witness.from_json(data)
    except PlanError as error:
        assert str(error)
        return
    # Witnesses from before there were replayed schedules have none.
    assert witness.to_json() == {"step": None} | data


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"fits": True, "refusal": "no", "memory": None}, "false for a program"),
        ({"memory": None}, "a text if there is no memory"),
        ({"refusal": "no"}, "a text if there is no memory"),
        ({"planned_sha256": "0"}, "64 digits"),
        ({"version": 2}, "verify again"),
        ({"format": "automap-plan"}, "automap-witness"),
    ],
)
def test_what_contradicts_itself_is_refused(change, match):
    with pytest.raises(PlanError, match=match):
        Witness.from_json(JSON | change)


def test_the_cache_gives_back_what_it_was_given(tmp_path):
    assert load_cached(tmp_path, "key") is None
    save_cached(tmp_path / "new", "key", WITNESS, b"program")
    assert load_cached(tmp_path / "new", "key") == (WITNESS, b"program")
    assert (tmp_path / "new" / "key.pb.gz").read_bytes() == b"program"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", json.dumps(JSON)[:-9].encode()])
def test_a_corrupted_entry_is_a_miss(tmp_path, content):
    save_cached(tmp_path, "key", WITNESS, b"program")
    (tmp_path / "key.json").write_bytes(content)
    assert load_cached(tmp_path, "key") is None


def test_an_entry_that_lost_its_program_is_a_miss(tmp_path):
    save_cached(tmp_path, "key", WITNESS, b"program")
    (tmp_path / "key.pb.gz").unlink()
    assert load_cached(tmp_path, "key") is None


def test_an_entry_does_not_say_which_file_is_opened(tmp_path):
    save_cached(tmp_path, "key", WITNESS, b"program")
    (tmp_path / "other").write_bytes(b"secret")
    (tmp_path / "key.json").write_text(json.dumps(JSON | {"program": "other"}))
    assert load_cached(tmp_path, "key") is None


def test_links_in_a_shared_folder_are_replaced_and_their_victims_left_alone(tmp_path):
    """Finding D10: what a link pointed to was overwritten."""
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("precious")
    folder.mkdir()
    for name in ("key.json", "key.pb.gz"):
        (folder / name).symlink_to(victim)
    save_cached(folder, "key", WITNESS, b"program")
    assert victim.read_text() == "precious"
    assert load_cached(folder, "key") == (WITNESS, b"program")
    assert sorted(p.name for p in folder.iterdir()) == ["key.json", "key.pb.gz"]


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(CacheWarning, match="Not a directory; .*--no-cache"):
        save_cached(tmp_path / "file" / "below", "key", WITNESS, None)


def test_the_key_holds_all_that_the_answer_depends_on(monkeypatch):
    plan = PlanShardings(
        axes=(("data", 8),),
        devices=None,
        inputs=((("data",),),),
        outputs=((None,),),
        donated=(),
    )
    machine = CompilerMachine(compiler="tpu", device_count=8, kind="v5e:2x4")
    keys = {
        cache_key("a", plan, machine, 1),
        cache_key("b", plan, machine, 1),
        cache_key("a", plan, machine, 2),
        cache_key("a", plan, CompilerMachine(compiler="tpu", device_count=8, kind="v6e:2x4"), 1),
        cache_key("a", plan, CompilerMachine(compiler="cpu", device_count=8), 1),
        cache_key(
            "a",
            replace(plan, inputs=((None,),)),
            machine,
            1,
        ),
        cache_key("a", replace(plan, devices=(0, 4, 5, 6, 7, 3, 2, 1)), machine, 1),
    }
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    keys.add(cache_key("a", plan, machine, 1))
    assert len(keys) == 8
