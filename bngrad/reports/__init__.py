"""Writes results: as text, JUnit XML, HTML, SARIF, Markdown and annotations of GitHub."""
