"""The web page of a cluster: server-rendered HTML over the views of the command line.

    mirrors -> pages -> templates -> server (session, limits) -> browser
                 live: the same pages again, whenever the mirrors change

It is a client of the API server like any other, in a process of its own, with the rights of the
person who started it. See docs/design/web.md.
"""

from fairlead.web.process import OwnPage, WebOptions, serve_web

__all__ = ["OwnPage", "WebOptions", "serve_web"]
