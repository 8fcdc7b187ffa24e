// What of ECharts the page of a run uses; see README.md for how echarts.min.js is made of it.
import { init, use, graphic } from "echarts/core";
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { DataZoomComponent, GridComponent, LegendComponent, TooltipComponent } from "echarts/components";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";

use([
  BarChart, CustomChart, LineChart, ScatterChart,
  DataZoomComponent, GridComponent, LegendComponent, TooltipComponent,
  CanvasRenderer, SVGRenderer,
]);

export { init, graphic };
