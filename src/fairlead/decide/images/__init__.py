"""Which images are pulled onto which nodes before work comes, and when."""
