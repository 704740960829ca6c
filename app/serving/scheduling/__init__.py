"""Requests in an executor process: which runs next, on which instance of the program."""
