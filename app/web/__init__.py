"""Pages and static assets; nothing here asks another host."""
