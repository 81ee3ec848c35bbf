function startLive() {}
