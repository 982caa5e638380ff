"""Serve search over HTTP: a page for people, routes for programs, and a guard before both."""
