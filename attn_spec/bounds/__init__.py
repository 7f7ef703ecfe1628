"""How far an answer may lie from the truth under a contract: theorems, and what they are evaluated on."""
