"""Fast kernels that take every option, to be judged by other suites' rules."""

import torch
from attn_spec.reports.proof.peers.trial import PEERS

from attn_spec import kernel
from attn_spec.emulation.kernels import SUPPORTS
from attn_spec.kernels.subject import Subject

#: Every peer at every dtype that its own tests run.
CELLS = [(name, dtype) for name, peer in PEERS.items() for dtype in peer.dtypes]
#: Rules that refuse some sound answers, as their rows say.
REFUSES_SOUND = {("assert_close", "float16"), ("assert_close", "bfloat16")}


def honest(q, k, v, **options):
    """Compute attention in float64, rounded once, differentiable."""
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    if options.get("causal_alignment") == "bottom_right":
        distance = distance - (k.shape[2] - q.shape[2])
    if options.get("causal"):
        visible = visible & (distance <= 0)
    left, right = options.get("window") or (None, None)
    visible = visible if left is None else visible & (distance >= -left)
    visible = visible if right is None else visible & (distance <= right)
    if options.get("mask") is not None:
        visible = visible & options["mask"]
    group = q.shape[1] // k.shape[1]
    x, y, z = (t.double().repeat_interleave(g, 1) for t, g in ((q, 1), (k, group), (v, group)))
    s = x @ y.transpose(-1, -2) * (options.get("scale") or q.shape[-1] ** -0.5)
    s = s if options.get("softcap") is None else options["softcap"] * torch.tanh(s / options["softcap"])
    s = s if options.get("bias") is None else s + options["bias"].double()
    s = s.masked_fill(~visible, -torch.inf)
    p = s.softmax(-1).masked_fill((s == -torch.inf).all(-1, keepdim=True), 0.0)
    return (p @ z).to(q.dtype), s.logsumexp(-1).float()


def subject(function, dtype, supports=(*SUPPORTS, "backward"), **declared):
    made = kernel(framework="torch", dtypes=(dtype,), supports=supports, **declared)(function)
    return Subject(made, dtype)


def changed(change):
    """Return the honest kernel with its output changed."""

    def attention(q, k, v, **options):
        out, lse = honest(q, k, v, **options)
        return change(out, v), lse

    return attention
