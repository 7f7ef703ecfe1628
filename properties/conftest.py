"""Nothing is needed here: options, fixtures and profiles come from attn_spec.pytest_plugin."""
