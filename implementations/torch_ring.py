"""Ring attention over processes: the sequence is dealt to ranks, keys and values go round, by torch.distributed.

Liu et al., arXiv 2310.01889. ``attn_spec.emulation.ring`` describes the work of a rank; ``rank_pool`` holds the
processes. In a ring of four the first part is merged with three others: the contract counts the merges.
"""

from attn_spec.emulation.ranks import striped, zigzag
from attn_spec.emulation.ring import RingRank, over_ranks

from .rank_pool import POOL

#: A call of four processes costs as much as several of one.
SLOWNESS = 4.0

attention = over_ranks("torch_ring", RingRank, 4, layout=zigzag, run=POOL, slowness=SLOWNESS)
contiguous = over_ranks("torch_ring:contiguous", RingRank, 2, run=POOL, slowness=SLOWNESS)
striped_queries = over_ranks("torch_ring:striped_queries", RingRank, 3, layout=striped, run=POOL, slowness=SLOWNESS)
