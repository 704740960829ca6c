"""Connections and requests below the routes: authentication, headers, errors, limits, long polling."""
