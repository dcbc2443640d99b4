"""What is bought for waiting gangs, what joins, and what is surplus. docs/design/fleet.md."""
