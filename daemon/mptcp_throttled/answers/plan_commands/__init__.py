"""Operations on the kernel as the commands that an operator could type instead."""
