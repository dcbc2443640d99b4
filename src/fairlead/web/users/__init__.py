"""The page for the users of a cluster: each signs in, and sees what his rights allow.

entrance.py   sign-in with a token or at an OpenID provider (oidc.py)
proxy.py      sign-in by a proxy that shows a certificate
identity.py   names from outside, which can never be those of the cluster itself
viewer.py     a user: what he may see now, and questions asked under his name
process.py    the process: mirrors of all, certificate, server
"""

from fairlead.web.users.process import UserPageOptions, serve_users

__all__ = ["UserPageOptions", "serve_users"]
