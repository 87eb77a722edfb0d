"""Posted uses, as lines, and their money; old ones are packed into bytes."""
