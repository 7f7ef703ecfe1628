"""The mathematics: attention and its gradients, as a definition and as proved intervals."""
