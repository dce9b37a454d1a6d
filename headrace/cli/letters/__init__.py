"""`headrace dead-letters`: what is in a topic of dead letters, and putting it back."""
