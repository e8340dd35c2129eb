"""The values that all other packages speak in. None of them changes after it was made."""
