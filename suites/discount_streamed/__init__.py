"""`discount_streamed`: the vest discount at the asker's size, larger than the card, streamed through it."""
