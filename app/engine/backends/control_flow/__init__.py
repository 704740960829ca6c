"""If, Loop and Scan, whose bodies are planned as programs of their own."""
