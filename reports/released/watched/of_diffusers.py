"""Diffusers: a transformer of images and a UNet with text, of random weights, in training and in sampling."""

from __future__ import annotations

import torch
from diffusers import DDIMScheduler, DiTTransformer2DModel, UNet2DConditionModel


def test_a_step_of_training_of_a_transformer() -> None:
    """The loss of noisy images has finite gradients."""
    torch.manual_seed(0)
    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    images, labels = torch.randn(2, 4, 16, 16), torch.tensor([1, 2])

    model(images, timestep=torch.tensor([3, 700]), class_labels=labels).sample.square().mean().backward()

    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)


@torch.no_grad()
def test_sampling_with_text() -> None:
    """Images that are made from noise, with attention to a text, are finite."""
    torch.manual_seed(0)
    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
        norm_num_groups=8,
    )
    scheduler, text = DDIMScheduler(), torch.randn(2, 7, 32)
    scheduler.set_timesteps(4)
    images = torch.randn(2, 4, 16, 16)

    for time in scheduler.timesteps:
        noise = model(images, time, encoder_hidden_states=text).sample
        images = scheduler.step(noise, time, images).prev_sample

    assert images.isfinite().all()
