"""Every step of the corpus is planned for machines that are not here, and computes under three
plans what one device does.

Needs the extra `corpus`; `make test-corpus` installs it in an environment of its own.
"""

import pytest

from tests.corpus.check import MACHINES, RUNS, planned_for, reference
from tests.corpus.entries import ENTRIES


pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_step_is_planned(entry, machine):
    assert planned_for(entry, machine).predicted.fits


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_three_steps_compute_what_one_device_does(entry):
    expected = reference(entry)
    for name, run in RUNS.items():
        made = run(entry)
        if made is not None:
            found = expected.compare(made)
            assert found.excess <= 1, f"{name}: {found.where}"
