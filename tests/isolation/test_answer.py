"""Answers of a kernel's process that are none, and messages that are none, are refused in words."""

import os

import numpy as np
import pytest

from attn_spec.isolation import answer
from attn_spec.isolation.answer import Result, StandIn
from attn_spec.isolation.channel import Channel, ChannelError, ClosedError
from attn_spec.isolation.declared import declaration
from attn_spec.isolation.plain import Opaque, decoded, encoded
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour

TENSOR = {"type": "ndarray", "dtype": "float32", "device": "cpu", "shape": [2, 3], "values": True}
SIX = np.arange(6.0).view(np.uint8)


def taken(document, blobs):
    result = Result.model_validate(document)
    return answer.returned(result, blobs, None, 1)


def test_a_tensor_is_taken_with_what_is_said_of_it():
    found = taken({"kind": "tuple", "parts": [TENSOR, {"type": "NoneType"}, {"type": "list"}]}, [SIX.copy()])
    assert isinstance(found[0], StandIn)
    assert (found[0].named, found[0].device, found[0].origin, found[1]) == ("float32", "cpu", (1, 0), None)
    assert type(found[2]).__name__ == "list"
    np.testing.assert_array_equal(found[0], np.arange(6.0).reshape(2, 3))


NONE = {
    "no parts": ({"kind": "one", "parts": []}, []),
    "unknown kind": ({"kind": "set", "parts": []}, []),
    "no values": ({"kind": "one", "parts": [TENSOR]}, []),
    "too few bytes": ({"kind": "one", "parts": [TENSOR]}, [SIX[:8]]),
    "half a number": ({"kind": "one", "parts": [TENSOR]}, [SIX[:7]]),
    "negative length": ({"kind": "one", "parts": [{**TENSOR, "shape": [-1, 6]}]}, [SIX]),
    "too long": ({"kind": "one", "parts": [{**TENSOR, "shape": [2**50], "values": False}]}, []),
    "a name twice": ({"kind": "dict", "parts": [{"type": "NoneType"}] * 2, "names": ["q", "q"]}, []),
    "unknown field": ({"kind": "one", "parts": [{**TENSOR, "pickle": "gAS"}]}, [SIX]),
    "a text for a number": ({"kind": "one", "parts": [{**TENSOR, "shape": ["2", 3]}]}, [SIX]),
    "a number for a text": ({"raised": 3}, []),
}


@pytest.mark.parametrize("name", NONE)
def test_an_answer_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match=r"parts|values|byte|reshape|shape|valid|extra|permitted"):  # pydantic's too
        taken(*NONE[name])


def test_changes_are_of_what_was_given():
    arrays = [np.zeros((2, 3)), np.broadcast_to(np.zeros(1), (2, 3))]
    answer.change(arrays, [0], [SIX])
    np.testing.assert_array_equal(arrays[0], np.arange(6.0).reshape(2, 3))
    with pytest.raises(ValueError, match="a change of tensor 2"):
        answer.change(arrays, [2], [SIX])
    with pytest.raises(ValueError, match="more bytes than its header announced"):
        answer.change(arrays, [], [SIX])
    with pytest.raises(Misbehaviour, match="changed an expanded input in place"):
        answer.change(arrays, [1], [SIX])


MESSAGES = {
    b"": "the other end is closed",
    (2**40).to_bytes(8, "little"): "a header of 1099511627776 bytes, above",
    (3).to_bytes(8, "little") + b"{]}": "the header is not valid JSON",
    (2).to_bytes(8, "little") + b"[]": "the header does not give the sizes",
    (15).to_bytes(8, "little") + b'{"sizes": [-1]}': "the header does not give the sizes",
    (26).to_bytes(8, "little") + b'{"sizes": [1000000000000]}': "bytes of tensors, above",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_none_is_refused(message):
    reading, writing = os.pipe()
    os.write(writing, message)
    os.close(writing)
    with pytest.raises(ChannelError, match=MESSAGES[message]):
        Channel(reading, reading).receive(1.0)
    os.close(reading)


def test_messages_pass_whole_and_in_time():
    reading, writing = os.pipe()
    channel = Channel(reading, writing)
    channel.send({"word": [1.5, None]}, [SIX, np.zeros(0), np.arange(3)])
    header, blobs = channel.receive()
    assert (header, [blob.nbytes for blob in blobs]) == ({"word": [1.5, None]}, [48, 0, 24])
    with pytest.raises(ChannelError, match="no answer in time"):
        channel.receive(0.01)
    os.close(reading)
    with pytest.raises(ClosedError, match="the other end does not read"):
        channel.send({})
    os.close(writing)


def test_plain_values_come_back():
    values = (None, True, 3, 2.5, "word", (1, (None, "x")), float("inf"))
    assert decoded(encoded(values)) == values
    assert encoded(np.float64(0.5)) == 0.5
    assert isinstance(decoded(encoded(object())), Opaque)
    with pytest.raises(ValueError, match="is not the document of a plain value"):
        decoded({"list": [1]})


def test_a_declaration_that_is_none_is_refused():
    with pytest.raises(KernelError, match="the kernel's process sent an invalid declaration"):
        declaration({"name": "kernel"})
