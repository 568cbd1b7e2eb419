"""What people and scanners say of rollouts, in files beside the output."""
