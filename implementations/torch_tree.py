"""Tree attention over processes, for decoding: keys are dealt to ranks, whose outputs are merged two by two.

Shyam et al., arXiv 2408.04093. ``attn_spec.emulation.ring`` describes the work of a rank; ``rank_pool`` holds the
processes. A key passes two merges in a tree of four ranks, as the contract says.
"""

from attn_spec.emulation.ring import TreeRank, over_ranks

from .rank_pool import POOL

attention = over_ranks("torch_tree", TreeRank, 4, run=POOL, slowness=4.0)
