"""The command ``attn-spec``, and everything that it shows."""
