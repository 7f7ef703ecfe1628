"""Terms without a witness, by the reason why no attack shows that they are needed."""

from __future__ import annotations

from .strikes import Strike, but

SCORES: dict[str, tuple[Strike, ...]] = {
    (
        "superfluous: what the first piece leaves of a number that underflows is below the grid, so that all "
        "pieces lose what one does"
    ): (but(1, "underflow of a second piece"),),
    "no emulated kernel does what this allows: pieces of one number that all have the other's sign": (
        "sizes of pieces",
    ),
    "a product of two errors, which the room of the first-order terms hides at the precision of float16": (
        "a product of pieces is one of rounded pieces",
        "both roundings of a probability, multiplied",
        "roundings of errors that two scores share",
        "slopes that errors which two scores share make steeper",
        "both operands underflow",
        "underflow of both descaled operands",
        "roundings make underflow grow",
    ),
    "a subnormal beside other absolute terms of the same stage, which leave more of their room unused than it takes": (
        "underflow of a probability's entry",
        "underflow of the capped score",
        "underflow of the sum with a bias",
        "underflow of a bias as it is loaded",
        "underflow of a bias that is rounded",
        "underflow of a sink that is rounded",
        "underflow of a sink as it is loaded",
        "underflow of the product of slope and distance as it is stored",
        "underflow of the sum with ALiBi",
        "underflow of the sum of two",
        "underflow of what a log-sum-exp is moved by",
        "underflow of a log-sum-exp that is moved",
        "underflow of a query's product with the mean",
    ),
    (
        "other roundings of the same stage accompany it in every kernel, and leave more of their room unused than "
        "it takes"
    ): (
        "the largest off the grid",
        "a slope that is rounded as a log-sum-exp is moved",
        "the product that a log-sum-exp is moved by",
        "the log-sum-exp before it is moved",
        "underflow of a slope, times the distance",
    ),
    "decides where sums or differences count as exact; no attack has numbers for which it decides alone": (
        "bits that a matrix unit loses",
        "an inner accumulator's bits",
        "storing a scaled operand that has more bits",
        "underflow on entry of an operand moved by a power of 4",
        "exact scores have all products of pieces",
        "exact scores have normal products",
        "exact scores have normal operands",
    ),
    "no emulated kernel does what this allows: it stores what it need not scale": ("storing operands of scale 1",),
    "no emulated kernel does what this allows: a descale that makes a score underflow before a larger one of q": (
        "factors behind an underflow",
    ),
    "no emulated kernel does what this allows: a folded constant on both operands": (
        but(1, "roundings of the operand's factor"),
        "the rounding of a folded factor",
    ),
    "what errors of operands have moved counts as rounded again in full, which leaves as much room": (
        "roundings that two scores of a pair do not share",
    ),
    "perhaps superfluous: a distance is 0 or a normal number, so slope and product alone underflow, once each": (
        but(1, "underflows of a slope and a product in their own format"),
    ),
    "the kernel holds the softcap in one constant, whose error the quotient and the product cancel": (
        but(1, "the softcap's inverse"),
        "the softcap's inverse",
    ),
    "stands behind one underflow of tanh more than kernels commit, which takes its place": (
        "underflow of the score over the softcap",
    ),
    "perhaps superfluous: the quotient by the softcap has its underflow elsewhere, and tanh is stored once": (
        but(1, "underflows of tanh"),
    ),
    (
        "with base 2 the terms of score, maximum and LSE leave room for one another: no attack fills the room of "
        "all of them"
    ): (
        but(2, "base 2 before a bias"),
        but(1, "base 2 before a bias"),
        "base 2 before a bias",
        "base 2 of the bias alone",
        "base 2 before ALiBi",
    ),
    "with base 2 a product underflows only where the relative roundings of larger scores of its row weigh more": (
        "base 2's underflow before a bias",
    ),
}
