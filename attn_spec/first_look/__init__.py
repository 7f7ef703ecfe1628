"""What is said of a kernel before any property is searched: that it is called in other ways than it expects."""
