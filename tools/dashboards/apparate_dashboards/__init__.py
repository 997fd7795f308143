"""Looking at the dashboards without a Grafana: their queries, asked of a real Prometheus, drawn page by page.

make dashboards                               a real run on this machine, a minute and a half
make dashboards ARGS="--prometheus URL"       your own Prometheus, the last hour
"""
