"""Run ``python -m attn_spec`` as the command ``attn-spec``."""

from attn_spec.cli.command import main

main(prog_name="attn-spec")
