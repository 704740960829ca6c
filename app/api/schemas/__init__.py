"""Bodies of requests and answers, and the jobs that requests stand for."""
