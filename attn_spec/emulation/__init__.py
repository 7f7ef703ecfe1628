"""The executable meaning of a contract: attention under any arithmetic, one method per step."""
