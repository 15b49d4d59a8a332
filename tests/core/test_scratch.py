"""Arrays in scratch files are as those in memory, and give their pages back."""

import time

import numpy as np
import pytest

from bidro.core import scratch as module
from bidro.core.errors import BidroError
from bidro.core.scratch import Scratch, beside, scratch_of, taken


def test_an_array_is_as_in_memory_and_what_is_taken_of_it_is_beside_it():
    rng = np.random.default_rng(0)
    wanted = rng.normal(size=(1000, 3))
    with Scratch(1 << 30) as here:
        rows = here.empty(wanted.shape)
        assert not rows.any()
        rows[:] = wanted
        view = rows[10:500].view()
        view.flags.writeable = False
        assert scratch_of(rows) is here
        assert scratch_of(view) is here
        places = rng.permutation(490)
        some = taken(view, places)
        np.testing.assert_array_equal(some, wanted[10:500][places])
        assert scratch_of(some) is here
        assert here.empty((0, 3)).shape == (0, 3)
        assert list(here.folder.iterdir()) == []  # a process that is killed leaves nothing
    assert not here.folder.exists()
    np.testing.assert_array_equal(rows, wanted)  # what somebody still has stays
    assert scratch_of(wanted) is None
    assert taken(wanted, places).base is None
    assert beside(wanted, (2,), np.int64).dtype == np.int64


@pytest.mark.skipif(not module._STATUS.exists(), reason="the system does not say how much is mapped")
def test_pages_are_given_back_beyond_what_may_be_resident():
    size = 64 << 20
    with Scratch(8 << 20) as here:
        before = module._mapped()
        rows = here.empty((size // 8,))
        for part in np.split(rows, 64):
            part[:] = 1.0
            time.sleep(0.005)
        time.sleep(3 * module._BETWEEN_LOOKS)
        assert module._mapped() - before < size / 2
        assert rows.sum() == size / 8


def test_a_disk_without_room_is_named():
    with Scratch(1 << 20) as here, pytest.raises(BidroError, match="TMPDIR"):
        here.empty((1 << 50,))
