"""Ranks hold every position once, share work under a causal mask, and exchange tensors or say why they cannot."""

import pytest
import torch

from attn_spec.emulation.ranks import Exchange, ExchangeError, Work, contiguous, in_turn, striped, zigzag
from attn_spec.emulation.ring import RingRank

LAYOUTS = (contiguous, zigzag, striped)


def positions(layout, length, ranks):
    return [places.tolist() for places in layout(length, ranks)]


def test_layouts_by_hand():
    assert positions(contiguous, 10, 4) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert positions(zigzag, 16, 4) == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]
    assert positions(striped, 8, 4) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [positions(layout, 2, 3) for layout in LAYOUTS] == [[[0], [1], []]] * 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_position_is_held_once(layout):
    for length in range(20):
        for ranks in range(1, 6):
            assert sorted(torch.cat(list(layout(length, ranks))).tolist()) == list(range(length))


def pairs(layout, ranks, length):
    """Count the scores that each rank computes in each hop of a causal ring."""
    team = [RingRank(number, ranks, layout, length, length, 1.0, causal=True, first=0) for number in range(ranks)]
    met = [[rank.met(rank.owner(hop))[2].numel() for hop in range(ranks)] for rank in team]
    return [sorted(row, reverse=True) for row in met]


def test_a_zigzag_shares_the_work_of_a_causal_mask_and_stretches_do_not():
    """Each other rank's keys leave half of 4 x 4 pairs; stretches leave all or none."""
    assert pairs(zigzag, 4, 16) == [[16, 8, 8, 8]] * 4
    assert pairs(contiguous, 4, 16) == [[16, 0, 0, 0], [16, 16, 0, 0], [16, 16, 16, 0], [16, 16, 16, 16]]


class Told:
    """A rank whose exchanges are given by hand."""

    def __init__(self, *exchanges):
        self.exchanges = exchanges

    def program(self):
        yield from self.exchanges
        return tuple(place for exchange in self.exchanges for places in exchange.receive.values() for place in places)


def test_a_message_waits_for_its_receiver_as_it_was_when_it_was_sent():
    sent, place = torch.ones(2), torch.zeros(2)
    sender = Told(Exchange(send={1: [sent]}), Exchange(send={1: [sent + 1]}))
    receiver = Told(Exchange(receive={0: [place]}))

    answers = in_turn([Work(sender, "program", ()), Work(receiver, "program", ())])

    assert answers[0] == ()
    assert answers[1][0] is place
    assert place.tolist() == [1.0, 1.0]


def test_ranks_that_wait_for_one_another_are_an_error():
    works = [Work(Told(Exchange(receive={other: [torch.zeros(1)]})), "program", ()) for other in (1, 0)]

    with pytest.raises(ExchangeError, match=r"^ranks wait for tensors that nobody sent: 0 for 1; 1 for 0$"):
        in_turn(works)


@pytest.mark.parametrize("place", [torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
def test_a_tensor_that_does_not_fit_is_an_error(place):
    works = [Told(Exchange(send={1: [torch.ones(2)]})), Told(Exchange(receive={0: [place]}))]

    with pytest.raises(
        ExchangeError, match=r"^tensors \[\(\(2,\), torch.float32\)\] were sent from rank 0 to rank 1, "
    ):
        in_turn([Work(rank, "program", ()) for rank in works])
