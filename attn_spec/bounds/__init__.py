"""Theorems that bound the error of an answer under a contract, and the quantities that they are evaluated on."""
