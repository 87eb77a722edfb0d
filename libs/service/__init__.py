"""What every service has besides its work: settings, health, metrics, background tasks, a graceful stop."""
