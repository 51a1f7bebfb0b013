// The cluster: who does what now.
export function drawCluster(place, series) {
  place.hidden = !series || !series.now;
}
