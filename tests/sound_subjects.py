"""The kernels that are sound by construction, at each of their dtypes."""

import pytest

from attn_spec.emulation.sound import SOUND

#: (name, dtype); all but one dtype of each kernel, in turn, are exhaustive.
SOUND_SUBJECTS = [
    pytest.param(name, dtype, marks=() if place == number % len(kernel.dtypes) else pytest.mark.exhaustive)
    for number, (name, kernel) in enumerate(SOUND.items())
    for place, dtype in enumerate(kernel.dtypes)
]
