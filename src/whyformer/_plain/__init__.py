"""Files, tokens, words, statistics, progress: code that knows nothing about models."""
