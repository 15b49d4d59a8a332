"""Messages: what goes in comes out, and bad bytes are refused with a sentence."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.core.errors import BidroError
from bidro.federated.algorithms.bidro_fl import Reply
from bidro.federated.algorithms.first_order import Broadcast
from bidro.federated.engines.wire import pack, unpack

MESSAGE = Reply(jnp.array([1.0, 2.5, -3.0]), jnp.asarray(0.25))


def test_round_trip_is_exact():
    back = unpack(pack(MESSAGE), Reply)
    assert np.array_equal(back.x, MESSAGE.x)
    assert back.g_alpha.shape == ()
    assert float(back.g_alpha) == 0.25


def test_another_type_and_values_that_are_not_finite_are_refused():
    with pytest.raises(BidroError, match="Broadcast needs x, alpha"):
        unpack(pack(MESSAGE), Broadcast)
    with pytest.raises(BidroError, match=r"'x'.*not finite"):
        unpack(pack(MESSAGE._replace(x=jnp.array([jnp.nan]))), Reply)


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_bytes_are_refused_or_still_a_message(position, byte, cut):
    data = bytearray(pack(MESSAGE))
    position %= len(data)
    damaged = bytes(data[:position]) if cut else bytes(data[:position]) + bytes([byte]) + data[position + 1 :]
    try:
        back = unpack(bytes(damaged), Reply)
    except BidroError:
        return
    assert isinstance(back, Reply)


@pytest.mark.parametrize("lie", ["a slice", "transposed", "every other row", "columns first"])
def test_arrays_keep_their_order_however_they_lie_in_memory(lie):
    whole = np.arange(24.0).reshape(4, 3, 2)
    array = {
        "a slice": whole[:, 1],
        "transposed": whole.T,
        "every other row": whole[::2],
        "columns first": np.asfortranarray(whole[:, 0]),
    }[lie]
    back = unpack(pack(MESSAGE._replace(x=array)), Reply)
    assert np.array_equal(back.x, array)
